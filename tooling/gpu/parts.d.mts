export const COMMAND_SECONDS: number;
export const PARTS: readonly {
  readonly name: string;
  readonly command: number;
  readonly seconds: number;
  readonly limit: number;
}[];
