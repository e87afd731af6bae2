"""Text models: folders of sentence-transformers, their tokenizers, batches by length, pooling, and what APIs need."""
