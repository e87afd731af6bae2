"""ONNX models, computed by ONNX Runtime."""
