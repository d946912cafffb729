# Needs no provider and no cloud: the resource is in the tool itself.
resource "terraform_data" "greeting" {
  input = "Hello from a commit"
}

output "greeting" {
  value = terraform_data.greeting.output
}
