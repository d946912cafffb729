# Needs no provider and no cloud: the resource is in the tool itself.
variable "region" {
  type = string
}

resource "terraform_data" "app" {
  input = "an app in ${var.region}"
}

output "app" {
  value = terraform_data.app.output
}

output "password" {
  value     = "not-a-real-password"
  sensitive = true
}
