# What the scripts of the sample image deploy. It stands for a cluster and needs no cloud.

variable "provision_cluster" {
  type    = bool
  default = false
}

variable "provision_db" {
  type    = bool
  default = false
}

variable "vpc_cidr" {
  type    = string
  default = "10.0.0.0/16"
}

resource "terraform_data" "cluster" {
  count = var.provision_cluster ? 1 : 0
  input = var.vpc_cidr
}

resource "terraform_data" "db" {
  count = var.provision_db ? 1 : 0
  input = "db.internal"
}

output "vpc_cidr" {
  value = var.vpc_cidr
}

output "db_instance_address" {
  value = join("", terraform_data.db[*].output)
}
