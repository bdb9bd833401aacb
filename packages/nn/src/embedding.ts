// Text encoders, and what is made of their rows. The front entry has the decoders.

export { Encoder } from './models/encoder.js';
export {
  ENCODER_DEFAULTS,
  type EncoderConfig,
  encoderParameterCount,
  resolveEncoderConfig,
} from './models/encoder-config.js';
export {
  EncoderAttention,
  EncoderBlock,
  type EncoderBlockPlaces,
  EncoderEmbeddings,
  EncoderIntermediate,
  EncoderOutput,
  type EncoderPlaces,
  EncoderPooler,
} from './models/encoder-layers.js';
export type { EncoderArgs, EncoderOptions } from './models/encoder-options.js';
export { encoderConfigText, parseEncoderConfig } from './models/hf/encoder-config-file.js';
export { encoderFiles, type OpenEncoder, openEncoder } from './models/hf/encoder-files.js';
export {
  TokenModel,
  type TokenModelOptions,
  type TokenModelParts,
} from './models/token-model.js';
