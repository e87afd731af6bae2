"""The inference protocol on the wire: messages, datatypes, and the specialised way of ModelInfer."""
