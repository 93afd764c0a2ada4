"""A GPU (`gpu`): its data sheet, its fitted `kernels`, what it borrows (`inheritance`), its prices."""
