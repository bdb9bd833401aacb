// llama.cpp's own writer of quantized files, by the plain C symbols of the prebuilt library.
import { readdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import koffi from 'koffi';

/** llama.cpp's numbers of the mixtures of types. */
export const MIXTURES = {
  ...{ Q4_0: 2, Q4_1: 3, Q8_0: 7, Q5_0: 8, Q5_1: 9, Q4_K_M: 15, Q5_K_M: 17, Q6_K: 18 },
} as const;
export type Mixture = keyof typeof MIXTURES;

/** Whether the library for this machine is one that koffi can load by its name. */
export const HAS_QUANTIZE = process.platform === 'linux';

/**
 * Returns the function that writes a file as another one in a mixture of types. The library's
 * parts have to be loaded, as openLlama does.
 */
export function openQuantize(): (files: {
  readonly from: string;
  readonly to: string;
  readonly mixture: Mixture;
}) => void {
  const require = createRequire(import.meta.url);
  const name = `linux-${process.arch}`;
  const index = createRequire(require.resolve('node-llama-cpp')).resolve(`@node-llama-cpp/${name}`);
  const bins = join(dirname(index), '../bins', name);
  const file = readdirSync(bins).find((file) => /^libllama(\.v[\d.]+)?\.so$/.test(file))!;
  const library = koffi.load(join(bins, file));
  // The other fields keep their defaults. The room behind them is more than any version needs.
  const rest = koffi.array('uint8', 248);
  const options = koffi.struct({ threads: 'int32', mixture: 'int32', rest });
  const defaults = library.func('llama_model_quantize_default_params', options, []);
  const type = koffi.pointer(options);
  const quantize = library.func('llama_model_quantize', 'uint32', ['str', 'str', type]);
  return ({ from, to, mixture }) => {
    const code = quantize(from, to, { ...defaults(), threads: 1, mixture: MIXTURES[mixture] });
    if (code !== 0) {
      throw new Error(`llama_model_quantize: ${code} for ${from} as ${mixture}`);
    }
  };
}
