"""Servers that die, drain and refuse, as a gateway's users see them."""

import signal
from concurrent.futures import ThreadPoolExecutor

from fleet import SECONDS, Gateway, Reply, wait_for

CALLS = 20
STREAMS = 6
REFUSED = "Failed to start generation: "
QUESTION = "What is a fjord?"
GREEDY = {"temperature": 0, "max_tokens": 24}
LONG = {"temperature": 0, "max_tokens": 200, "ignore_eos": True}


def check(server, folder):
    servers = [server("one"), server("two")]
    alone = server("alone", "--max_running=1", "--max_waiting_requests=1")
    for one in (*servers, alone):
        one.ready()
    with Gateway(folder, servers, policy="round_robin") as gateway:
        expected = text(gateway.chat(QUESTION, **GREEDY))
        check_kill(gateway, servers, expected)
        servers[1].start().ready()
        gateway.wait_for_workers(2)
        check_drain(gateway, servers, expected)
    with Gateway(folder, [alone]) as gateway:
        check_overload(gateway, alone)
        check_drain_of_all(gateway, alone)
    print("no call was lost")


def text(reply):
    assert reply.status == 200, (reply.status, reply.body)
    return reply.json["choices"][0]["message"]["content"]


def load(pool, gateway):
    """Calls at both servers at once: unary ones, and streams, each of which has begun."""
    streams = [gateway.open_chat(QUESTION, **LONG, stream=True) for _ in range(STREAMS)]
    for stream in streams:
        while b"content" not in (line := stream.readline()) or b'"role"' in line:
            assert line, "a stream has ended"
    return [pool.submit(gateway.chat, QUESTION, **GREEDY) for _ in range(CALLS)], streams


def wait_for_load(servers):
    wait_for("calls at both", lambda: all(server.api.running() > CALLS / 3 for server in servers), every=0.01)


def rest(stream):
    """The events of a stream that are left, and the server that sends them."""
    with stream:
        reply = Reply(stream.status, stream.headers, stream.read())
    return reply.events, stream.headers["x-smg-routed-worker-id"]


def check_kill(gateway, servers, expected):
    """Unary calls are answered by the other server; begun streams end in an error."""
    with ThreadPoolExecutor(CALLS) as pool:
        calls, streams = load(pool, gateway)
        wait_for_load(servers)
        servers[1].stop(signal.SIGKILL)
        assert [text(call.result()) for call in calls] == [expected] * CALLS
        ends = [rest(stream) for stream in streams]
    for events, url in ends:
        assert ("error" in events[-1]) == (url == servers[1].url), (events, url)
        assert "error" in events[-1] or events[-1]["choices"][0]["finish_reason"] == "length", events
    assert len({url for _, url in ends}) == 2, ends


def check_drain(gateway, servers, expected):
    """A server that is told to stop ends what it has begun; calls go to the other one."""
    with ThreadPoolExecutor(2 * CALLS) as pool:
        calls, streams = load(pool, gateway)
        wait_for_load(servers)
        servers[1].process.send_signal(signal.SIGTERM)
        calls += [pool.submit(gateway.chat, QUESTION, **GREEDY) for _ in range(CALLS)]
        assert [text(call.result()) for call in calls] == [expected] * 2 * CALLS
        for events, _ in map(rest, streams):
            assert events[-1]["choices"][0]["finish_reason"] == "length", events
    assert servers[1].process.wait(SECONDS) == 0, servers[1].tail()


def check_overload(gateway, alone):
    """One call runs and one waits: a third is refused, with the server's reason."""
    with ThreadPoolExecutor(2) as pool:
        held = [pool.submit(gateway.chat, QUESTION, **LONG) for _ in range(2)]
        wait_for("a full queue", lambda: alone.api.running() == 2)
        reply = gateway.chat(QUESTION, **GREEDY)
        assert (reply.status, reply.error) == (429, REFUSED + "the queue is full"), (reply.status, reply.body)
        for call in held:
            text(call.result())


def check_drain_of_all(gateway, alone):
    """Refused by the server until the gateway has seen that it is not healthy, then by the gateway."""
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(gateway.chat, QUESTION, **LONG)
        wait_for("a call", lambda: alone.api.running() == 1)
        alone.process.send_signal(signal.SIGTERM)
        wait_for("the drain", lambda: alone.says('"drain'))
        reply = gateway.chat(QUESTION, **GREEDY)
        assert (reply.status, reply.error) == (503, REFUSED + "the server is shutting down"), (reply.status, reply.body)
        gateway.wait_for_workers(0)
        reply = gateway.chat(QUESTION, **GREEDY)
        assert (reply.status, reply.json["error"]["code"]) == (503, "no_available_workers"), (reply.status, reply.body)
        text(held.result())
    assert alone.process.wait(SECONDS) == 0, alone.tail()
