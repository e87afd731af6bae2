"""The backend of ONNX models: everything that knows ONNX Runtime."""
