# Shared by layers. A commit that touches this directory is relevant to each layer that calls it.
variable "name" {
  type = string
}

resource "terraform_data" "service" {
  input = "service ${var.name}"
}
