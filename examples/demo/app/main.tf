# Calls a local module, and is applied by itself.
module "web" {
  source = "../modules/service"
  name   = "web"
}
