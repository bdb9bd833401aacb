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

/**
 * The cases, but of those that differ in f16 and bf16 alone one each, in turns. Kernels read and
 * write both by the same few functions, which casts, copies and products have in full.
 */
export function halvesInTurns<Case extends { readonly name: string }>(
  cases: readonly Case[],
): readonly Case[] {
  const twins = new Map<string, Case[]>();
  for (const one of cases) {
    const key = one.name.replaceAll(/\bb?f16\b/g, '16');
    twins.set(key, [...(twins.get(key) ?? []), one]);
  }
  const pairs = [...twins.values()].filter((group) => group.length === 2);
  const left = new Set(pairs.map((pair, i) => pair[i % 2]!));
  return cases.filter((one) => !left.has(one) || /^(cast|copy|matmul b?f16 by)/.test(one.name));
}

/**
 * The cases, but in 16 bits the first one of each kernel or op alone, in one of the two, and casts,
 * copies and products.
 */
export function fewHalves<Case extends { readonly name: string }>(
  cases: readonly Case[],
): readonly Case[] {
  const found = new Set<string>();
  return halvesInTurns(cases).filter(({ name }) => {
    const [kernel] = name.split(' ');
    const isFirst = !found.has(kernel!);
    if (!/\bb?f16\b/.test(name)) {
      return true;
    }
    found.add(kernel!);
    return isFirst || /^(cast|copy|matmul)/.test(name);
  });
}
