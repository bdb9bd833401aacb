// Types of chromium.mjs, which is plain JavaScript since it runs before anything is installed.
export function findChromium(): string | undefined;
export function chromiumForTests(): Promise<{ environment: Record<string, string> }>;
