"""Drives a node with the public Python SDK `cocoonstack-sandbox`, as it is published.

usage: sandbox.py HOST:PORT (the root token is read from standard input)

Prints one JSON line per finding.
"""

import io
import json
import sys
import tarfile
import time
import urllib.request

from cocoonsandbox import Client
from cocoonsandbox.errors import APIError, ExitError, SandboxTimeout, SilkdError

CANARY = "host-only-" + "canary"


def tell(**finding):
    print(json.dumps(finding, sort_keys=True), flush=True)


def refused(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except APIError as error:
        return error.status
    except SilkdError as error:
        return error.kind
    return "not refused"


def commands(sandbox):
    tell(
        echo=sandbox.exec("echo", "hello"),
        stdin=sandbox.exec("cat", stdin=b"through and back"),
        cwd=sandbox.exec("pwd", cwd="/tmp").strip(),
        own_env=sandbox.exec("sh", "-c", "echo $OWN", env={"OWN": "mine"}).strip(),
    )
    try:
        sandbox.exec("sh", "-c", "echo before; echo why >&2; exit 7")
    except ExitError as error:
        tell(exit=[error.code, error.stdout.strip(), error.stderr.strip()])
    try:
        sandbox.exec("sleep", "987", timeout=1)
    except SandboxTimeout:
        deadline = time.monotonic() + 20
        left = None
        while left is None or (left and time.monotonic() < deadline):
            left = [entry for entry in sandbox.ps() if entry["argv"] == ["sleep", "987"] and entry["state"] == "running"]
        tell(timed_out=True, left_running=len(left))
    pid = sandbox.spawn("sh", "-c", "echo started; exec sleep 986")
    deadline = time.monotonic() + 20
    seen = bytearray()
    while b"started" not in seen and time.monotonic() < deadline:
        seen.clear()
        ended = sandbox.logs(pid, on_stdout=seen.extend)
    sandbox.kill(pid)
    tell(spawned=seen.decode().strip(), ended=ended, killed=sandbox.attach(pid))


def files(sandbox):
    sandbox.mkdir("folder/deep", parents=True)
    content = bytes(range(256)) * 4096
    sandbox.write_file("folder/data", content, mode=0o640)
    stat = sandbox.stat("folder/data")
    sandbox.rename("folder/data", "folder/deep/data")
    archive = sandbox.pull("folder")
    names = sorted(tarfile.open(fileobj=io.BytesIO(archive)).getnames())
    sandbox.push("copy", archive)
    tell(
        read_back=sandbox.read_file("folder/deep/data") == content,
        stat=[stat["kind"], stat["size"], stat["mode"] & 0o777],
        folder=sorted(entry["name"] for entry in sandbox.list_dir("folder")),
        archived=[name.rstrip("/") for name in names],
        pushed=sandbox.exec("sh", "-c", "find copy -name data | wc -l").strip(),
        missing=refused(sandbox.read_file, "no-such-file"),
    )
    sandbox.remove("folder", recursive=True)
    tell(removed=refused(sandbox.stat, "folder"))


def terminal(sandbox):
    with sandbox.open_pty(cols=100, rows=30) as pty:
        pty.resize(120, 40)
        pty.write(b"stty size; echo $((6*7)); exit 3\n")
        said = bytearray()
        while chunk := pty.read():
            said.extend(chunk)
        tell(terminal=[b"40 120" in said, b"42" in said, pty.exit_code])


def ports(sandbox):
    sandbox.mkdir("www")
    sandbox.write_file("www/page", b"served from inside")
    sandbox.spawn("python3", "-m", "http.server", "8123", "--bind", "127.0.0.1", cwd="www")
    deadline = time.monotonic() + 30
    while refused(lambda: sandbox.dial_port(8123).close()) == "not_found" and time.monotonic() < deadline:
        time.sleep(0.1)
    listener = sandbox.proxy_port("127.0.0.1:0", 8123)
    port = listener.getsockname()[1]
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/page", timeout=30).read().decode()
    listener.close()
    preview = sandbox.preview_url(8123, ttl_seconds=60)
    through = urllib.request.urlopen(preview + "page", timeout=30).read().decode()
    tell(page=page, preview=through, nobody_listens=refused(sandbox.dial_port, 8124))


def sleep_and_wake(client, sandbox):
    pid = sandbox.spawn("sh", "-c", "while :; do date +%s%N > tick; sleep 0.05; done")
    time.sleep(0.5)
    sandbox.hibernate()
    asleep = client.info()["hibernated"]
    row = [row for row in client.sandboxes() if row["id"] == sandbox.id][0]
    # the next call wakes it, and its processes go on
    before = sandbox.read_file("tick")
    deadline = time.monotonic() + 20
    while sandbox.read_file("tick") == before and time.monotonic() < deadline:
        time.sleep(0.1)
    tell(
        asleep=[asleep, row["hibernated"]],
        awake=client.info()["hibernated"],
        goes_on=sandbox.read_file("tick") != before,
    )
    sandbox.kill(pid)


def environment(client, sandbox):
    def env(method, body, path="env"):
        return client._request(client.addr, method, f"/v1/sandboxes/{sandbox.id}/{path}", body, "env")

    entries = {
        "SEEN": {"value": 'a "quoted" $value'},
        "SECRET": {"value": CANARY, "guest": False},
    }
    env("PUT", {"env": entries})
    shown = env("GET", None)["env"]
    inside = sandbox.exec("sh", "-c", 'printf %s "$SEEN"')
    over = sandbox.exec("sh", "-c", 'printf %s "$SEEN"', env={"SEEN": "asked"})
    everything = sandbox.exec(
        "sh", "-c", "env; cat /proc/*/environ; grep -rs host-only-cana /run /etc /tmp /home /workspace; cat /run/cocoonbox-identity/*"
    )
    env("PATCH", {"env": {"SEEN": {"value": "changed"}, "SECRET": {"value": CANARY + "2", "guest": False}}})
    tell(
        shown={name: entry["value"] for name, entry in shown.items()},
        inside=inside,
        over=over,
        changed=sandbox.exec("sh", "-c", 'printf %s "$SEEN"'),
        secret_inside=CANARY in everything,
        control_inside="SEEN=a" in everything,
        inject=refused(
            env,
            "PATCH",
            {"env": {"KEY": {"value": "v", "guest": False, "inject": {"hosts": ["a.example"], "header": "X-Key"}}}},
        ),
        null_guest=refused(env, "PATCH", {"env": {"KEY": {"value": "v", "guest": None}}}),
    )
    sandbox.hibernate()
    tell(
        guest_entry_asleep=refused(env, "PATCH", {"env": {"SEEN": {"value": "no"}}}),
        host_entry_asleep=refused(env, "PATCH", {"env": {"SECRET": {"value": CANARY + "3", "guest": False}}}),
        still_asleep=client.info()["hibernated"],
    )


def search(sandbox):
    sandbox.mkdir("src")
    sandbox.write_file("src/a.txt", b"one\ntwo three\n")
    sandbox.write_file("src/b.md", b"three\n")
    found = sandbox.find("src", "thr.e", glob="*.txt")
    replaced = sandbox.replace(["src/a.txt", "src/b.md"], "thr(e)e", "t${1}n")
    tell(
        found=[[match["file"].rsplit("/", 1)[-1], match["line"], match["content"]] for match in found],
        replaced=[entry["replacements"] for entry in replaced],
        rewritten=sandbox.read_file("src/a.txt").decode(),
        bad_pattern=refused(sandbox.find, "src", "("),
    )


def shells(sandbox):
    with sandbox.session(cwd="/tmp", env={"KEPT": "yes"}) as shell:
        shell.exec("cd", "/workspace")
        shell.exec("export", "ADDED=too")
        tell(
            shell=[shell.exec("pwd").strip(), shell.exec("sh", "-c", "echo $KEPT $ADDED").strip()],
            listed_shells=sandbox.sessions() == [shell.id],
        )
        try:
            shell.exec("sh", "-c", "exit 9")
        except ExitError as error:
            tell(shell_exit=error.code)
    tell(shells_left=sandbox.sessions())


def watching(sandbox):
    sandbox.mkdir("watched")
    with sandbox.watch("watched") as watcher:
        sandbox.write_file("watched/new", b"x")
        for event in watcher:
            if event["path"].endswith("/new"):
                tell(watched=True)
                break


def versions(sandbox):
    sandbox.exec("git", "init", "-q", "-b", "main", "repo")
    sandbox.write_file("repo/file", b"content\n")
    sandbox.git_add("repo", ["file"])
    commit = sandbox.git_commit("repo", "first", "A Person <person@example.org>")
    sandbox.git_create_branch("repo", "other")
    sandbox.write_file("repo/loose", b"")
    status = sandbox.git_status("repo")
    branches = sandbox.git_branches("repo")
    tell(
        commit=commit == sandbox.exec("git", "-C", "repo", "rev-parse", "HEAD").strip(),
        branches=[branches["current"], sorted(branches["branches"])],
        status=sorted(status),
        clone=refused(sandbox.git_clone, "https://example.org/x.git", "x"),
    )


def main():
    address, token = sys.argv[1], sys.stdin.readline().strip()
    client = Client(address, api_token=token)
    tell(before=client.sandboxes(), volumes=client.volumes(), checkpoints=client.checkpoints())
    sandbox = client.new("host", ttl_seconds=600, claim_ref="stories/one")
    first = sandbox.deadline
    listed = client.sandboxes()
    tell(
        listed=[[row["claim_ref"], row["key"]["template"], row["deadline"] == first] for row in listed],
        token_listed=sandbox.token in json.dumps(listed),
        renewed=sandbox.renew(3600) > first,
        looked_up=client.lookup(sandbox.id, sandbox.token).owner == sandbox.owner,
        not_found=refused(client.lookup, sandbox.id, "sbt_of_another"),
    )
    commands(sandbox)
    files(sandbox)
    terminal(sandbox)
    ports(sandbox)
    environment(client, sandbox)
    sleep_and_wake(client, sandbox)
    search(sandbox)
    shells(sandbox)
    watching(sandbox)
    versions(sandbox)
    tell(
        checkpoint=refused(sandbox.checkpoint),
        fork=refused(sandbox.fork, 2),
        promote=refused(sandbox.promote, "mine:1"),
        lsp=refused(sandbox.start_lsp, "rust"),
    )
    client.drain()
    tell(drained=refused(client.new, "host"))
    client.uncordon()
    sandbox.close()
    sandbox.close()
    tell(after=client.sandboxes(), gone=refused(sandbox.hibernate))


main()
