// Types of transformers.mjs, which is plain JavaScript since it runs before anything is installed.
export function findTransformers(): string | undefined;
export function findOnnxPython(): string | undefined;
export function transformersForTests(): Promise<{ environment: Record<string, string> }>;
