"""What a program does with a client that was generated from the service's document: client_tour.py URL TOKEN, with the client as the
package `terrane` beside the current directory."""

import sys
import time

sys.path.insert(0, ".")

from terrane import AuthenticatedClient
from terrane.api.layers import get_layer, list_layers, sync_layer
from terrane.api.runs import get_plan_text, get_queue, list_runs
from terrane.api.stacks import create_stack, delete_stack, get_stack_outputs, get_stack_request
from terrane.models import NewStack, NewStackVariables, Problem

client = AuthenticatedClient(base_url=sys.argv[1], token=sys.argv[2], raise_on_unexpected_status=True)

page = list_layers.sync(client=client, namespace="default", sort="name", limit=2)
print("layers:", [layer.name for layer in page.items], "of more:", page.total > 2 and bool(page.next_))
layer = get_layer.sync("default", "database", client=client)
print("plan:", layer.plan.changes.add, "to add")
text = get_plan_text.sync_detailed("default", layer.plan.run, client=client)
print("text:", b"will be created" in text.content)
print("sync:", sync_layer.sync_detailed("default", "network", client=client).status_code.value)
print("runs:", "plan" in [run.action for run in list_runs.sync(client=client, layer="network").items])
print("queue:", get_queue.sync(client=client).waiting >= 0)

refused = create_stack.sync(client=client, body=NewStack(template="machine"))
print("refused:", type(refused) is Problem, refused.status, [fault.pointer for fault in refused.errors])
variables = NewStackVariables.from_dict({"name": "by-a-client"})
stack = create_stack.sync(client=client, body=NewStack(template="machine", variables=variables)).stack.id
print("stack:", stack)
patience = time.monotonic() + 120
while (request := get_stack_request.sync(stack, "create", client=client)).state in ("pending", "running"):
    assert time.monotonic() < patience, request
    time.sleep(0.2)
print("created:", request.state)
print("machines:", get_stack_outputs.sync(stack, client=client).to_dict()["machines"]["value"])
other = create_stack.sync(client=client, body=NewStack(template="machine", variables=variables)).stack.id
print("deleted:", delete_stack.sync_detailed(other, client=client).status_code.value in (202, 204))
