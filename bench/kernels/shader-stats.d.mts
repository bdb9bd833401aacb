export function shaderStats(text: string): {
  readonly loop: Readonly<Record<string, number>> | undefined;
};
