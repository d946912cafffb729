-- How Argo CD tells the health of Terrane's resources: see docs/gitops.md.
local health = {status = "Progressing", message = "not looked at yet"}
if obj.status == nil or obj.status.conditions == nil then
  if obj.kind == "TerraformApproval" then
    return {status = "Healthy"}
  end
  return health
end
if obj.status.observedGeneration ~= nil and obj.status.observedGeneration ~= obj.metadata.generation then
  return health
end
local found = {}
for _, condition in ipairs(obj.status.conditions) do
  found[condition.type] = condition
end
local ready = found["Ready"]
if ready == nil then
  return health
end
health.message = ready.message
if ready.status == "True" then
  health.status = "Healthy"
elseif found["Stalled"] ~= nil and found["Stalled"].status == "True" then
  health.status = "Degraded"
elseif ready.status == "False" and (found["Reconciling"] == nil or found["Reconciling"].status ~= "True") then
  health.status = "Suspended"
end
return health
