# Copied for each stack that is made over the HTTP service: POST /tfstacks. Nothing of it is applied for itself.
variable "name" {
  description = "What the machines are called"
  type        = string
}

variable "count_of" {
  description = "How many machines there are"
  type        = number
  default     = 1
}

variable "password" {
  description = "How to log in to them"
  type        = string
  sensitive   = true
  default     = "none"
}

# Terrane gives each run the name of its workspace, which is the id of the stack.
variable "terrane_workspace" {
  type    = string
  default = "default"
}

resource "terraform_data" "machine" {
  count = var.count_of
  input = { name = "${var.name}-${count.index + 1}", password = var.password }
}

output "machines" {
  value = [for index in range(var.count_of) : "${var.name}-${index + 1}"]
}

output "workspace" {
  value = var.terrane_workspace
}

output "login" {
  value     = "admin:${var.password}"
  sensitive = true
}
