// Which cases of the kernels' suite run where all of them would take too long.

/** The first case of each kernel in f32 and in f16, but for products of all shapes in f16. */
export function firstOfEach<Case extends { readonly name: string }>(
  cases: readonly Case[],
): readonly Case[] {
  const found = new Map<string, Case>();
  for (const one of cases) {
    const [, kernel, dtype] =
      /^(\w+) .*?\b(f32|f16)\b(?! of all shapes in al)/.exec(one.name) ?? [];
    const key = `${kernel} ${dtype}`;
    if (dtype !== undefined && !found.has(key)) {
      found.set(key, one);
    }
  }
  return [...found.values()];
}
