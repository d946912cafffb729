#!/usr/bin/env bash
# Stacks over HTTP, with curl alone. Start `terrane up --demo` in another terminal, set KUBECONFIG as it says, and run this.
# TOKEN and URL can be given instead, for a service elsewhere that has the demo's template.
set -euo pipefail

URL=${URL:-$(kubectl get configmap terrane-service -n terrane-system -o jsonpath='{.data.url}')}
if [ -z "${TOKEN:-}" ]; then
    terrane token revoke stacks-tour >/dev/null 2>&1 || true
    TOKEN=$(terrane token create stacks-tour --scope read,write --expires 1h 2>/dev/null)
fi

# ask METHOD PATH [CURL OPTIONS]: the answer; a refusal ends the tour.
ask() {
    local method=$1 path=$2
    shift 2
    curl --silent --show-error --fail-with-body --request "$method" --header "Authorization: Bearer $TOKEN" "$URL$path" "$@"
}

# status METHOD PATH [CURL OPTIONS]: only its number.
status() {
    local method=$1 path=$2
    shift 2
    curl --silent --output /dev/null --write-out '%{http_code}' --request "$method" --header "Authorization: Bearer $TOKEN" "$URL$path" "$@"
}

# follow PATH: waits until the request of this path has ended.
follow() {
    local request state
    while :; do
        request=$(ask GET "$1")
        state=$(jq -r .state <<<"$request")
        case $state in
            succeeded) echo "$1: succeeded"; return ;;
            failed | superseded) echo "$request" >&2; return 1 ;;
        esac
        sleep 1
    done
}

json=(--header 'content-type: application/json')

echo "== What stacks can be made from"
until ask GET /tfstacks/templates | jq -e '.items[] | select(.name == "machine") | .ready' >/dev/null; do sleep 1; done
ask GET /tfstacks/templates | jq -c '.items[] | {name, default, variables: [.variables[].name]}'

echo "== Two stacks of one template, at once; the first can be sent as often as one likes"
KEY=web-$RANDOM$RANDOM
WEB=$(ask POST /tfstacks "${json[@]}" --header "Idempotency-Key: $KEY" --data '{"variables": {"name": "web", "password": "hunter2"}, "labels": {"tour": "web"}}')
AGAIN=$(ask POST /tfstacks "${json[@]}" --header "Idempotency-Key: $KEY" --data '{"variables": {"name": "web", "password": "hunter2"}, "labels": {"tour": "web"}}')
DB=$(ask POST /tfstacks "${json[@]}" --data '{"template": "machine", "variables": {"name": "db", "count_of": 2}, "labels": {"tour": "db"}}')
WEB_ID=$(jq -r .stack.id <<<"$WEB")
DB_ID=$(jq -r .stack.id <<<"$DB")
[ "$WEB_ID" = "$(jq -r .stack.id <<<"$AGAIN")" ]
[ "$WEB_ID" != "$DB_ID" ]
follow "$(jq -r .request.href <<<"$WEB")"
follow "$(jq -r .request.href <<<"$DB")"

echo "== Each has a workspace and outputs of its own"
ask GET "/tfstacks/$WEB_ID" | jq -c '{id, state, workspace, variables}'
ask GET "/tfstacks/$WEB_ID/outputs" | jq -c 'map_values(.value)'
ask GET "/tfstacks/$DB_ID/outputs" | jq -c 'map_values(.value)'

echo "== Another variable, for the stack as it was seen"
until TAG=$(ask GET "/tfstacks/$WEB_ID" | jq .version) &&
    CHANGED=$(ask PATCH "/tfstacks/$WEB_ID" "${json[@]}" --header "If-Match: $TAG" --data '{"variables": {"count_of": 3}}'); do sleep 1; done
follow "$(jq -r .request.href <<<"$CHANGED")"
ask GET "/tfstacks/$WEB_ID/outputs" | jq -c .machines.value

echo "== What the code would not take is refused, each named"
curl --silent --request PATCH --header "Authorization: Bearer $TOKEN" "${json[@]}" "$URL/tfstacks/$WEB_ID" \
    --data '{"variables": {"count_of": "many", "nam": "x"}}' | jq -c '{status, errors: [.errors[].detail]}'

echo "== Found by label, state and template"
until [ "$(ask GET '/tfstacks?label=tour%3Dweb&state=ready&template=machine' | jq .total)" -ge 1 ]; do sleep 1; done
ask GET '/tfstacks?label=tour&sort=-createdAt&limit=2' | jq -c '.items[] | {id, state, labels}'

echo "== The log of what was done last, as text and as events"
ask GET "/tfstacks/$WEB_ID/logs" | tail -n 3
ask GET "/tfstacks/$WEB_ID/logs/events" --no-buffer | tail -n 3

echo "== Deleted: destroyed first, then gone"
ask DELETE "/tfstacks/$WEB_ID" | jq -c .request
ask DELETE "/tfstacks/$DB_ID" | jq -c .request
for id in "$WEB_ID" "$DB_ID"; do
    until [ "$(status GET "/tfstacks/$id")" = 404 ]; do sleep 1; done
    echo "/tfstacks/$id: 404"
done
