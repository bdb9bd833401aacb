export type Mutant = {
  readonly list: string;
  readonly id: string;
  readonly says: string;
  readonly file: string;
  readonly find: string;
  readonly replace: string;
  readonly test: string;
  readonly name?: string;
};
export function readMutants(): readonly Mutant[];
export function faultsOf(mutant: Mutant): readonly string[];
