package sub

const Unit = "byte"
