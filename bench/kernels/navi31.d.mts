export interface KernelFigures {
  readonly label: string;
  readonly vgprs: number;
  readonly waves: number;
  readonly spilledVgprs: number;
  readonly load128: number;
  readonly load64: number;
  readonly loop:
    | {
        readonly multiplyAdds: number;
        /** Those that share an instruction with another one. */
        readonly dualMultiplyAdds: number;
        readonly otherVector: number;
      }
    | undefined;
  /** The gates that it fails, in words. */
  readonly failures: readonly string[];
}

export const CHECKED_DRIVER: string;
export function whyNoCompiler(): string | undefined;
export function compileKernels(
  list: readonly { readonly label: string; readonly wgsl: string }[],
): {
  readonly driver: string;
  readonly kernels?: readonly KernelFigures[];
};
