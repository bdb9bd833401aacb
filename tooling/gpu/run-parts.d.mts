export interface Part {
  readonly name: string;
  readonly limit: number;
  readonly args: (where: { readonly rows: string; readonly scratch: string }) => string[];
}
export function runParts(
  parts: readonly Part[],
  options: {
    readonly rows: string;
    readonly scratch: string;
    readonly program?: string;
    readonly signal?: AbortSignal;
  },
): Promise<boolean>;
