"""The path of an inference: recognise, validate, plan, answer, observe."""
