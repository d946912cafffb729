# Keeps a file on this machine. Change the file by hand, or delete it: the layer has onDrift: revert, so Terrane puts it back.
# The layer also has deletionPolicy: Destroy, so the file goes when the layer is deleted.
variable "file" {
  type    = string
  default = "/tmp/terrane-demo/motd"
}

variable "text" {
  type    = string
  default = "Terrane keeps this file as it is.\n"
}

# There is no provider here that looks at files, so the plan does: how often the file was made grows when it is not as it should be.
locals {
  is_right = fileexists(var.file) ? file(var.file) == var.text : false
  made     = fileexists("${var.file}.made") ? tonumber(file("${var.file}.made")) : 0
}

resource "terraform_data" "motd" {
  input            = { file = var.file, text = var.text }
  triggers_replace = { times_made = local.is_right ? local.made : local.made + 1 }

  provisioner "local-exec" {
    command     = <<-SH
      umask 022
      printf '%s' "$TEXT" > "$FILE.new" && mv -f "$FILE.new" "$FILE"
      printf '%s' "$MADE" > "$FILE.new" && mv -f "$FILE.new" "$FILE.made"
    SH
    environment = { FILE = self.input.file, TEXT = self.input.text, MADE = self.triggers_replace.times_made }
  }

  # The count stays: when the file is made anew, it is read before or after this.
  provisioner "local-exec" {
    when        = destroy
    command     = "rm -f \"$FILE\""
    environment = { FILE = self.input.file }
  }
}
