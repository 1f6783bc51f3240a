"""Lists and ensures boxes, knowing nothing but the server's reflection: no generated code, no proto file.

usage: boxes.py HOST:PORT (the token is read from standard input)

Prints one JSON line per finding.
"""

import json
import sys

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

PACKAGE = "cocoonbox.control.v1"


def tell(**finding):
    print(json.dumps(finding, sort_keys=True), flush=True)


class Service:
    """A service as reflection describes it."""

    def __init__(self, channel, pool, name, token):
        self.channel, self.token = channel, token
        self.descriptor = pool.FindServiceByName(name)

    def call(self, method_name, token=None, **fields):
        method = self.descriptor.methods_by_name[method_name]
        request = json_format.ParseDict(fields, GetMessageClass(method.input_type)())
        path = f"/{self.descriptor.full_name}/{method_name}"
        reply_class = GetMessageClass(method.output_type)
        make = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        call = make(path, request_serializer=type(request).SerializeToString, response_deserializer=reply_class.FromString)
        metadata = [("authorization", f"Bearer {token or self.token}")]
        reply = call(request, metadata=metadata, timeout=60)
        if method.server_streaming:
            return [json_format.MessageToDict(item) for item in reply]
        return json_format.MessageToDict(reply)

    def code(self, method_name, **fields):
        try:
            self.call(method_name, **fields)
        except grpc.RpcError as error:
            return error.code().name
        return "OK"


def main():
    address, token = sys.argv[1], sys.stdin.readline().strip()
    channel = grpc.insecure_channel(address)
    database = ProtoReflectionDescriptorDatabase(channel)
    tell(services=sorted(database.get_services()))
    boxes = Service(channel, DescriptorPool(database), f"{PACKAGE}.Boxes", token)

    tell(before=boxes.call("List").get("boxes", []))
    ensured = boxes.call("Ensure", idempotencyKey="python-1")
    events = boxes.call("Watch", operationId=ensured["operationId"])
    tell(events=[event["phase"] for event in events], sequences=[int(event["sequence"]) for event in events])
    again = boxes.call("Ensure", idempotencyKey="python-1", wait=True)
    tell(same_operation=again.get("operationId", "") == ensured["operationId"])
    running = boxes.call("Ensure", wait=True)
    tell(operation_when_running=running.get("operationId", ""))
    listed = boxes.call("List")["boxes"]
    tell(names=[box["name"] for box in listed], states=[box["state"] for box in listed])

    tell(
        wrong_token=boxes.code("List", token="cb_" + "0" * 64),
        malformed_token=boxes.code("List", token="nonsense"),
        unknown_box=boxes.code("Get", box="cb-aaaaaaaaaa"),
        bad_name=boxes.code("Create", name="Not A Name"),
        unconfirmed=boxes.code("Delete", box=listed[0]["id"]),
        save=boxes.code("Save", box=listed[0]["id"]),
    )


main()
