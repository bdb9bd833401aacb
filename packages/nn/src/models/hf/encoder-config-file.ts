// The config.json of an encoder, read and written.

import { FormatError } from '../../errors.js';
import { ENCODER_DEFAULTS, type EncoderConfig, resolveEncoderConfig } from '../encoder-config.js';
import { type ConfigFields, ownFields } from './config-fields.js';
import { configText, parseConfigText, type WeightsDType } from './config-text.js';

const ARCHITECTURE = 'BertModel';

/** Classes whose weights are this encoder's and those of a head, which is left behind. */
const WITH_HEADS = ['BertForMaskedLM', 'BertForPreTraining', 'BertForSequenceClassification'];

/** Fields that would change the computation, each with the value under which they do not. */
const FIXED: ConfigFields = { position_embedding_type: 'absolute', is_decoder: false };

/** Fields of heads and of tokenizers, some of which only older files have. */
const HARMLESS: ReadonlySet<string> = new Set([
  ...['bos_token_id', 'eos_token_id', 'classifier_dropout', 'num_labels', 'tie_word_embeddings'],
  ...['directionality', 'pooler_fc_size', 'pooler_num_attention_heads', 'pooler_num_fc_layers'],
  ...['pooler_size_per_head', 'pooler_type'],
]);

const OWN: ReadonlySet<string> = new Set(Object.keys(ENCODER_DEFAULTS));

/**
 * Reads an encoder's configuration from the text of its config.json. The text cannot tell whether
 * the weights beside it have a pooler, unless this package wrote it; see openEncoder.
 * @throws {FormatError} for text that is not a JSON object, for a model_type other than 'bert', and
 * for a field that is unknown or asks for a computation that the encoder does not do
 * @throws {NnConfigError} naming a field whose value cannot work
 */
export function parseEncoderConfig(text: string): EncoderConfig {
  return readEncoderConfig(parseConfigText(text));
}

/** Reads an encoder's configuration from the fields of its config.json. */
export function readEncoderConfig(fields: ConfigFields): EncoderConfig {
  if (fields.model_type !== ENCODER_DEFAULTS.model_type) {
    throw new FormatError(
      `config.json: expected model_type to be ${ENCODER_DEFAULTS.model_type}, got ${JSON.stringify(fields.model_type)}. Other encoders are not supported.`,
    );
  }
  const options = ownFields(fields, {
    architectures: [ARCHITECTURE, ...WITH_HEADS],
    own: OWN,
    fixed: FIXED,
    isHarmless: (name) => HARMLESS.has(name),
  });
  return resolveEncoderConfig(options as Partial<EncoderConfig>);
}

/**
 * The text of the config.json that describes an encoder. `dtype` is that of the weights beside it;
 * default f32.
 */
export function encoderConfigText(
  config: EncoderConfig,
  options: { readonly dtype?: WeightsDType } = {},
): string {
  return configText('encoderConfigText', encoderConfigFields(config), options);
}

/** The fields of the config.json that describes an encoder. */
export function encoderConfigFields(config: EncoderConfig): ConfigFields {
  const { model_type, add_pooling_layer: hasPooler, ...rest } = config;
  return {
    model_type,
    architectures: [ARCHITECTURE],
    ...FIXED,
    ...rest,
    ...(hasPooler && { add_pooling_layer: hasPooler }),
  };
}
