export interface PartRows {
  readonly part: string;
  readonly rows: readonly Readonly<Record<string, unknown>>[];
  readonly ended?: number | string;
  readonly seconds?: number;
  readonly tail?: string;
}
export function appendRow(file: string | undefined, row: object): void;
export function readRows(file: string): { readonly about: object; readonly parts: PartRows[] };
