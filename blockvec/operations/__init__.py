"""Operations on arrays: checks of the operands, descriptions, the choice of a kernel, its run and profile."""
