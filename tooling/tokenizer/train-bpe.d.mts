// Types of train-bpe.mjs, which runs by itself.
export function trainTokenizer(): string;
