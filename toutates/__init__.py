"""Toutates, an ONNX inference server that Triton gRPC clients use without a change."""
