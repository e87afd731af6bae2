"""Makes models of folders that sentence-transformers and transformers save: see ``importing``.

The ONNX graph is written from config.json and the weights, without PyTorch:

    importing ─▶ converting ─▶ bert, modernbert (the architectures) ─▶ layers ─▶ graph (the file)
                                  settings (config.json), weights (safetensors) ─┘
"""
