export const BLOCKS: Readonly<Record<string, { readonly report: string }>>;
