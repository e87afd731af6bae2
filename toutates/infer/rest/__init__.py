"""The path of an inference whose request came over REST: recognise, validate, plan, answer.

    service     from a body to rows in a batch
    plan        what is remembered of one kind of request
    answers     from a batch's outputs to answers

``toutates.protocol.rest`` reads and writes the bytes. What is not of REST is inherited from ``toutates.infer``.
"""
