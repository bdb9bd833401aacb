export function factsOf(wgsl: string): {
  readonly invocations: number;
  readonly memoryBytes: number;
  readonly bindings: readonly {
    readonly index: number;
    readonly name: string;
    readonly type: string;
    readonly access: string;
  }[];
};
