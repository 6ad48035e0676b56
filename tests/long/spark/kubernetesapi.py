"""As much of Kubernetes' API as Spark's driver asks for, on loopback: a pod that it makes is a process of this machine,
started by the entrypoint that the image has.

What is asked for is kept, so that a test can hold it against the rights that the driver is given. Nothing of a real
cluster is here: no admission, no scheduling, no network between pods.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import psutil

_HOST: Final = "127.0.0.1"
_PATH: Final = re.compile(r"/api/v1/namespaces/([^/]+)/(\w+)(?:/([^/]+))?")
_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch"}

Thing = dict[str, Any]


class KubernetesApi:
    """`asked` has the verb and the resource of every request, `pods` what the driver made."""

    def __init__(self, folder: Path, entrypoint: Path, environment: Mapping[str, str]) -> None:
        """`environment`: what the image has."""
        self.asked: set[tuple[str, str]] = set()
        self.pods: dict[str, Thing] = {}
        self.processes: list[subprocess.Popen[bytes]] = []
        self._folder, self._entrypoint, self._environment = folder, entrypoint, environment
        self._things: dict[tuple[str, str], Thing] = {}
        self._events: list[Thing] = []
        self._changed = threading.Condition()
        self._versions = itertools.count(1)
        self._ended = False
        self._followers: list[threading.Thread] = []
        self._server = ThreadingHTTPServer((_HOST, 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.address = f"http://{_HOST}:{self._server.server_address[1]}"

    def add(self, resource: str, thing: Thing) -> None:
        """What is there without being asked for, such as the driver's pod."""
        with self._changed:
            self._keep("ADDED", resource, thing)

    def stop(self) -> None:
        """End the server and every process."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        for process in self.processes:
            kill(process)
        for thread in self._followers:
            thread.join()

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Thing]:
        """To anything but a watch: status and what goes back."""
        split = urlsplit(path)
        found = _PATH.fullmatch(split.path)
        if found is None:
            return 404, _status(404, path)
        resource, name = found[2], found[3]
        selector = parse_qs(split.query).get("labelSelector", [""])[0]
        self.asked.add((_verb(method, name), resource))
        with self._changed:
            match method, name:
                case "GET", None:
                    items = [one for (kind, _), one in self._things.items() if kind == resource and _has(one, selector)]
                    return 200, {"kind": "List", "apiVersion": "v1", "metadata": self._version(), "items": items}
                case "GET", _:
                    thing = self._things.get((resource, name))
                    return (200, thing) if thing else (404, _status(404, name))
                case "POST", _:
                    thing = json.loads(body)
                    self._keep("ADDED", resource, thing)
                    if resource == "pods":
                        self._run(thing)
                    return 201, thing
                case "PATCH", _:
                    return 200, self._things[resource, name]
                case "DELETE", _:
                    for at in [
                        at
                        for at, one in self._things.items()
                        if at[0] == resource and name in (None, at[1]) and _has(one, selector)
                    ]:
                        self._keep("DELETED", resource, self._things[at])
                    return 200, _status(200, "deleted")
        return 405, _status(405, method)

    def watched(self, path: str) -> Iterator[Thing]:
        """Events of a resource from now on, until the end."""
        split = urlsplit(path)
        found = _PATH.fullmatch(split.path)
        assert found is not None, path
        selector = parse_qs(split.query).get("labelSelector", [""])[0]
        self.asked.add(("watch", found[2]))
        seen = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or len(self._events) > seen)  # noqa: B023 -- called at once
                fresh, seen = self._events[seen:], len(self._events)
                if self._ended:
                    return
            yield from (one for one in fresh if one["resource"] == found[2] and _has(one["object"], selector))

    def _version(self) -> Thing:
        return {"resourceVersion": str(next(self._versions))}

    def _keep(self, event: str, resource: str, thing: Thing) -> None:
        meta = thing["metadata"]
        meta |= self._version()
        meta.setdefault("uid", f"uid-{meta['name']}")
        meta.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        if event == "DELETED":
            self._things.pop((resource, meta["name"]), None)
        else:
            self._things[resource, meta["name"]] = thing
        self._events.append({"type": event, "object": json.loads(json.dumps(thing)), "resource": resource})
        self._changed.notify_all()

    def _run(self, pod: Thing) -> None:
        """Its one container as a process; a volume that is empty at first is a folder of its own."""
        (container,) = pod["spec"]["containers"]
        name = pod["metadata"]["name"]
        self.pods[name] = pod
        empty = {one["name"] for one in pod["spec"]["volumes"] if "emptyDir" in one}
        mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"] if one["name"] in empty}
        home = self._folder / name
        for volume in mounts.values():
            (home / volume).mkdir(parents=True)
        fields = {"status.podIP": _HOST, "metadata.name": name}
        environment = dict(self._environment)
        for one in container["env"]:
            reference = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            value = fields[reference] if reference else one.get("value", "")
            environment[one["name"]] = str(home / mounts[value]) if value in mounts else value
        with (home / "log").open("wb") as log:
            command = [str(self._entrypoint), *container["args"]]
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=home)
        self.processes.append(process)
        self._phase(pod, "Running", {"running": {}})
        thread = threading.Thread(target=self._follow, args=(pod, process))
        self._followers.append(thread)
        thread.start()

    def _phase(self, pod: Thing, phase: str, state: Thing) -> None:
        (container,) = pod["spec"]["containers"]
        reported = [{"name": container["name"], "ready": phase == "Running", "state": state}]
        pod["status"] = {"phase": phase, "podIP": _HOST, "containerStatuses": reported}
        self._keep("MODIFIED", "pods", pod)

    def _follow(self, pod: Thing, process: subprocess.Popen[bytes]) -> None:
        """Report the end of a pod's process, where somebody has not deleted the pod."""
        code = process.wait()
        with self._changed:
            if ("pods", pod["metadata"]["name"]) in self._things:
                self._phase(pod, "Failed" if code else "Succeeded", {"terminated": {"exitCode": code}})


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for a pod's process and all under it, as where its node is lost."""
    try:
        tree = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        tree = []
    process.kill()
    for one in tree:
        if one.is_running():
            one.kill()
    psutil.wait_procs(tree, timeout=10)


@contextmanager
def kubernetes_api(folder: Path, entrypoint: Path, environment: Mapping[str, str]) -> Iterator[KubernetesApi]:
    """One, until the end."""
    api = KubernetesApi(folder, entrypoint, environment)
    try:
        yield api
    finally:
        api.stop()


def image_environment(spark_home: Path) -> dict[str, str]:
    """What the image's `ENV` and this machine's paths come to; nothing of this process's own besides."""
    taken = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "PYTHONPATH") if name in os.environ}
    return taken | {"SPARK_HOME": str(spark_home), "HOME": "/dev/null", "SPARK_LOCAL_IP": _HOST}


def _verb(method: str, name: str | None) -> str:
    match method:
        case "GET":
            return "get" if name else "list"
        case "DELETE":
            return "delete" if name else "deletecollection"
        case _:
            return _VERBS[method]


def _has(thing: Thing, selector: str) -> bool:
    """Whether its labels are those of a selector; of its forms, that of `a=b,c!=d,e in (f)`."""
    labels: dict[str, str] = thing["metadata"].get("labels") or {}
    for one in re.split(r",(?![^(]*\))", selector):
        if found := re.fullmatch(r"(.+?)\s*(!=|==?)\s*(.*)", one):
            if (labels.get(found[1]) == found[3]) is (found[2] == "!="):
                return False
        elif (found := re.fullmatch(r"(\S+) in \((.*)\)", one)) and labels.get(found[1]) not in found[2].split(","):
            return False
    return True


def _status(code: int, message: str) -> Thing:
    outcome = "Success" if code < 300 else "Failure"
    return {"kind": "Status", "apiVersion": "v1", "status": outcome, "code": code, "message": message}


def _handler(api: KubernetesApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.headers.get("Upgrade"):  # a watch by WebSocket, which a client does without where it gets none
                self._send(200, b"")
            elif "watch=true" in self.path:
                self._watch()
            else:
                self._answer()

        def _answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            code, thing = api.answer(self.command, self.path, self.rfile.read(size))
            self._send(code, json.dumps(thing).encode())

        do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815 -- the base class's names

        def _send(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _watch(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for event in api.watched(self.path):
                    line = json.dumps({"type": event["type"], "object": event["object"]}).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                    self.wfile.flush()
            except OSError:  # whoever watched is gone
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Tests are quiet."""

    return Handler
