# Fails on purpose: the module needs a name.
module "nameless" {
  source = "../modules/service"
}
