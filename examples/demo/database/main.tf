# Its plan waits for a person: terrane approve database
resource "terraform_data" "db" {
  count = 3
  input = "replica ${count.index}"
}
