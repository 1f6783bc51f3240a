"""Somebody at a browser, as far as signing in goes: the pages' own calls, and where they lead.

person.py password ENDPOINT LINK      sets PERSON_PASSWORD by a one-time link
person.py allow|deny ADDRESS          signs in as PERSON_NAME, answers what the address asks, and goes where it leads;
                                      PERSON_SAW names a file that keeps what was asked
person.py ask ADDRESS                 signs in and prints what the address asks, or why it is refused
person.py call ENDPOINT METHOD PATH   signs in, calls the console's JSON, and prints the answer
person.py register ENDPOINT REDIRECT  registers a client and prints its id
"""

import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

NAME = os.environ.get("PERSON_NAME", "admin")
PASSWORD = os.environ["PERSON_PASSWORD"]


class Browser:
    def __init__(self, origin):
        self.origin, self.cookie = origin, ""

    def call(self, method, path, body=None):
        headers = {"content-type": "application/json", "cookie": self.cookie}
        if method != "GET":
            headers["origin"] = self.origin
            headers["sec-fetch-site"] = "same-origin"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.origin}/cb/api/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            set_cookie = answer.headers.get("set-cookie")
            if set_cookie:
                self.cookie = set_cookie.split(";")[0]
            text = answer.read()
            return json.loads(text) if text else None

    def sign_in(self):
        self.call("POST", "login", {"name": NAME, "password": PASSWORD})
        return self


def origin_of(address):
    parts = urllib.parse.urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}"


def ask(browser, address):
    return browser.call("POST", "oauth/check", {"query": urllib.parse.urlsplit(address).query})


def answer(verb, address):
    """Does what a person does on the consent page; returns where the browser goes."""
    browser = Browser(origin_of(address)).sign_in()
    query = urllib.parse.urlsplit(address).query
    asked = ask(browser, address)
    if "PERSON_SAW" in os.environ:
        with open(os.environ["PERSON_SAW"], "a") as saw:
            saw.write(json.dumps(asked) + "\n")
    if "redirect" in asked:
        return asked["redirect"]
    return browser.call("POST", f"oauth/{'approve' if verb == 'allow' else 'deny'}", {"query": query})["redirect"]


def get(address, headers=None):
    return urllib.request.urlopen(urllib.request.Request(address, headers=headers or {}), timeout=30)


def follow(address):
    """Goes to a client's own address. Some open a browser before they listen: it is late, as people are."""
    for _ in range(100):
        try:
            return get(address)
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionRefusedError):
                raise
            time.sleep(0.1)
    return get(address)


def form(address, members):
    return json.load(urllib.request.urlopen(address, urllib.parse.urlencode(members).encode(), timeout=30))


def refused(work):
    try:
        work()
    except urllib.error.HTTPError as error:
        return error
    raise SystemExit("this must be refused")


def register(door, redirect):
    metadata = json.dumps({"client_name": "A story's agent", "redirect_uris": [redirect]}).encode()
    request = urllib.request.Request(door, metadata, {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=30))["client_id"]


def main(verb, place, *more):
    if verb == "password":
        link = more[0].rsplit("=", 1)[-1]
        Browser(place).call("POST", "login/link", {"link": link, "password": PASSWORD})
    elif verb in ("allow", "deny"):
        follow(answer(verb, place)).read()
    elif verb == "ask":
        browser = Browser(origin_of(place)).sign_in()
        try:
            print(json.dumps(ask(browser, place)))
        except urllib.error.HTTPError as error:
            print(json.dumps({"refused": error.code, **json.load(error)}))
    elif verb == "where":
        print(answer("allow", place))
    elif verb == "call":
        print(json.dumps(Browser(place).sign_in().call(*more)))
    elif verb == "register":
        print(register(f"{place}/cocoonbox.oauth/register", more[0]))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
