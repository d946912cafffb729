# The directory `terraform` of the repository that both manifests name.
variable "var1" {}
variable "var2" {}

resource "terraform_data" "example" {
  input = "${var.var1} ${var.var2}"
}

output "greeting" {
  value = terraform_data.example.output
}

output "password" {
  value     = "hunter2"
  sensitive = true
}
