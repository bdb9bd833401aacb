// Gives texts to the WGSL compiler of the host's WebGPU. wgpu parses and validates a text when the
// module is made, so nothing has to run.

export interface WgslText {
  readonly label: string;
  readonly wgsl: string;
}

export interface CompileResult {
  /** Whether the adapter has 16-bit floats. Without, no text with `enable f16` is accepted. */
  readonly hasF16: boolean;
  readonly numAccepted: number;
  /** What the compiler said, in the order of the texts. */
  readonly refused: readonly { readonly label: string; readonly message: string }[];
}

export async function compileTexts(
  texts: readonly WgslText[],
  tell: (label: string) => void,
): Promise<CompileResult> {
  const adapter = await navigator.gpu.requestAdapter();
  if (adapter === null) {
    throw new Error('compile: expected a WebGPU adapter, got none. Is a Vulkan driver installed?');
  }
  const device = await adapter.requestDevice({
    requiredFeatures: [...adapter.features] as GPUFeatureName[],
  });
  // The answers come late, so that they are waited for together.
  const answers = texts.map(async ({ label, wgsl }) => {
    tell(label);
    device.pushErrorScope('validation');
    device.createShaderModule({ label, code: wgsl });
    const error = await device.popErrorScope();
    return error === null ? [] : [{ label, message: error.message }];
  });
  const refused = (await Promise.all(answers)).flat();
  device.destroy();
  const hasF16 = adapter.features.has('shader-f16');
  return { hasF16, numAccepted: texts.length - refused.length, refused };
}
