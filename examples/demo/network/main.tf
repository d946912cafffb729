# Applied by itself: the layer has autoApply.
resource "terraform_data" "vpc" {
  input = { cidr = "10.0.0.0/16" }
}

resource "terraform_data" "subnet" {
  input = { vpc = terraform_data.vpc.id, cidr = "10.0.1.0/24" }
}

output "cidr" {
  value = terraform_data.subnet.output.cidr
}
