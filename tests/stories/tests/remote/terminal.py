"""Drives `cocoonbox rsh -t` under a real terminal: one check after the other, each says what went wrong."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

program, check = sys.argv[1:3]
server = int(sys.argv[3])


class Terminal:
    """A client on a terminal of its own that this script holds open, so that its modes can be looked at after."""

    def __init__(self, words, rows=31, columns=97, term="xterm-256color", **env):
        self.master, self.slave = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.slave)
        self.seen = b""
        env = {**os.environ, "TERM": term, **env}

        def own():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.child = subprocess.Popen(
            [program, "rsh", "--box", "main", "-t", "--", *words],
            stdin=self.slave, stdout=self.slave, stderr=self.slave, env=env, preexec_fn=own,
        )

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text):
        os.write(self.master, text)

    def pump(self, seconds):
        if select.select([self.master], [], [], seconds)[0]:
            self.seen += os.read(self.master, 65536)

    def until(self, text, seconds=20):
        end = time.monotonic() + seconds
        while text not in self.seen:
            if time.monotonic() > end:
                sys.exit(f"waited in vain for {text!r}; seen: {self.seen!r}")
            self.pump(0.2)

    def wait(self, seconds=20):
        end = time.monotonic() + seconds
        while self.child.poll() is None:
            if time.monotonic() > end:
                sys.exit(f"the client does not end; seen: {self.seen!r}")
            self.pump(0.05)
        while select.select([self.master], [], [], 0.1)[0]:
            self.pump(0)
        return self.child.returncode

    def modes(self):
        return termios.tcgetattr(self.slave)

    def expect_restored(self):
        expect(self.modes() == self.before, f"modes: {self.before} became {self.modes()}")


def expect(holds, why):
    if not holds:
        sys.exit(f"{check}: {why}")


def size():
    one = Terminal(["sh", "-c", "trap 'echo now $(stty size)' WINCH; stty size; echo rea''dy; while :; do sleep 0.05; done"])
    one.until(b"ready")
    expect(b"31 97" in one.seen, one.seen)
    one.resize(44, 122)
    one.until(b"now 44 122")
    # a raw terminal gives Ctrl-C as a byte; the box's terminal makes a signal of it
    one.type(b"\x03")
    expect(one.wait() == 130, (one.child.returncode, one.seen))
    one.expect_restored()


def interrupt():
    one = Terminal(["sh", "-c", "trap 'echo caught; exit 7' INT; echo rea''dy; while :; do sleep 0.05; done"])
    one.until(b"ready")
    expect(one.modes() != one.before, "the terminal is not raw while the program runs")
    one.type(b"\x03")
    one.until(b"caught")
    expect(one.wait() == 7, one.child.returncode)
    one.expect_restored()
    # a shell's foreground job alone is interrupted, the shell and the client go on
    one = Terminal(["sh", "-i"])
    one.until(b"$ ")
    one.type(b"sleep 60; echo status $?\r")
    time.sleep(0.7)
    one.type(b"\x03")
    time.sleep(0.3)
    one.type(b"echo al''ive; exit 3\r")
    one.until(b"alive")
    expect(one.wait() == 3, one.child.returncode)
    one.expect_restored()


def exits():
    for code in 0, 1, 42, 255:
        one = Terminal(["sh", "-c", f"exit {code}"])
        expect(one.wait() == code, (code, one.child.returncode, one.seen))
        one.expect_restored()
    one = Terminal(["no-such-program"])
    expect(one.wait() == 127 and b"no-such-program: command not found\r\n" in one.seen, one.seen)
    one.expect_restored()
    # Ctrl-D ends input
    one = Terminal(["sh", "-c", "cat; echo ov''er"])
    one.until(b"") 
    one.type(b"typed\r")
    one.until(b"typed\r\ntyped\r\n")
    one.type(b"\x04")
    one.until(b"over")
    expect(one.wait() == 0, one.child.returncode)


def term():
    own = os.path.join(os.environ["HOME"], "terminfo")
    os.makedirs(own, exist_ok=True)
    source = subprocess.run(["infocmp", "-x", "xterm-256color"], check=True, capture_output=True, text=True).stdout
    source = re.sub(r"^xterm-256color\|[^,]*,", "cocoon-term|a terminal of our own,", source, flags=re.M)
    source = re.sub(r"colors#[0-9x]+", "colors#77", source)
    subprocess.run(["tic", "-x", "-o", own, "-"], input=source, check=True, text=True)
    one = Terminal(["sh", "-c", "echo term=$TERM colors=$(tput colors)"], term="cocoon-term", TERMINFO=own)
    expect(one.wait() == 0 and b"term=cocoon-term colors=77" in one.seen, one.seen)
    # no entry anywhere: a terminal that programs know
    one = Terminal(["sh", "-c", "echo term=$TERM; tput colors"], term="nowhere-term")
    expect(one.wait() == 0 and b"term=xterm-256color\r\n256" in one.seen, one.seen)
    # a name that could lead elsewhere is refused, and nothing runs
    one = Terminal(["sh", "-c", "echo ra''n"], term="../../etc/x")
    expect(one.wait() == 255 and b"ran" not in one.seen and b"term" in one.seen, (one.child.returncode, one.seen))
    one.expect_restored()


def killed():
    """The client is told to end, and the terminal is the person's again."""
    one = Terminal(["sh", "-c", "echo rea''dy; exec sleep 60"])
    one.until(b"ready")
    one.child.send_signal(signal.SIGTERM)
    expect(one.wait() == 143, (one.child.returncode, one.seen))
    one.expect_restored()
    one = Terminal(["sh", "-c", "echo rea''dy; exec sleep 60"])
    one.until(b"ready")
    one.child.send_signal(signal.SIGHUP)
    expect(one.wait() == 129, (one.child.returncode, one.seen))
    one.expect_restored()


def server_dies():
    one = Terminal(["sh", "-c", "echo rea''dy; exec sleep 60"])
    one.until(b"ready")
    os.kill(server, signal.SIGKILL)
    one.until(b"the connection was lost")
    # who does not want to wait presses Ctrl-C
    for _ in range(10):
        one.child.send_signal(signal.SIGINT)
        time.sleep(0.2)
    one.wait()
    one.expect_restored()
    expect(one.child.returncode == 130, (one.child.returncode, one.seen))


{"size": size, "interrupt": interrupt, "exits": exits, "term": term, "killed": killed, "server_dies": server_dies}[check]()
print("done")
