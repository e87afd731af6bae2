"""What a request costs Toutates, beside other servers, in the same minutes on the same machine.

    python -m bench [--quick]          measure; figures go to bench/results/NAME.json as they come
    python -m bench report FILE        put the figures of such a file into docs/measurements.md

**What is measured.** The CPU time of the server, user and system, all threads and child processes, from /proc before
and after a load, over the requests completed in it. Rates and latencies depend on the cores that the client leaves and
are there for orientation; the CPU of a request is what a machine full of servers pays.

**Side by side.** All servers run at once and take turns within each round, and the order turns from round to round.
Absolute times on shared machines are noise, hence the ratio to ``grpc.aio``, or over REST to ``fastapi``, taken round
by round.

**And is it right?** Before and after each load, answers are fetched through tritonclient and compared with ONNX
Runtime's own. h2load does not look at grpc-status, so the bytes of its answers are counted as well: an error has no
message. Over REST it looks at the status. A load with one failed, missing or short answer gives no figure, and the
benchmark ends with status 1.

| module | what |
|---|---|
| ``__main__``, ``options`` | the command line |
| ``session`` | one run: models, servers and parts in their order |
| ``environments`` | virtual environments and tools, made or found |
| ``servers``, ``process`` | starting servers; their CPU time and memory |
| ``models``, ``question``, ``rest_question`` | what is served; a request and the right answer to it |
| ``h2load``, ``perf_analyzer`` | clients |
| ``own_client``, ``round_robin``, ``stream_load`` | the client of ``toutates.bench``, in this process |
| ``alike`` | two servers that are alike, compared by ``toutates bench`` |
| ``idle`` | connections that are open and idle |
| ``measure`` | one figure: checks, load, checks |
| ``sweeps``, ``memory`` | what the loads do not show |
| ``results``, ``summary``, ``report``, ``plots``, ``machine`` | figures, and what becomes of them |
| ``baseline_*``, ``mlserver_model``, ``triton_model`` | the other servers |
"""
