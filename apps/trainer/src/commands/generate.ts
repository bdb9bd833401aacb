// The command `generate`: prints text as a model makes it, after a prompt or in a conversation.

import type { ChatMessage, Conversation } from '../data/chat-template.js';
import type { Tokenizer } from '../data/tokenizer.js';
import { type SignalError, UsageError } from '../errors.js';
import { Briefing, readTools } from '../generate/briefing.js';
import { converse, type Speaker } from '../generate/converse.js';
import { GENERATE, type GenerateFlags } from '../generate/generate-flags.js';
import { openTextModel, type TextModel } from '../generate/open-text-model.js';
import { TextStream } from '../generate/text-stream.js';
import { printable } from '../output/printable.js';
import type { CommandContext } from './cli-command.js';
import { defineCommand } from './define-command.js';

/** The command `generate`. */
export const generateText = defineCommand({
  name: 'generate',
  description: 'Continues a text, or answers in a conversation, with a model and its adapters.',
  flags: GENERATE,
  model: 'weights',
  examples: [
    {
      line: "generate --model runs/first --prompt 'Call me'",
      says: 'what a trained model goes on to write',
    },
    {
      line: 'generate --model DIR --adapter runs/tuned/adapter --chat',
      says: 'a conversation: each line that you type is a turn',
    },
    {
      line: "generate --model DIR --chat --system 'You are terse.' --tools tools.json",
      says: 'one that may call tools; what you type after a call is its result',
    },
    {
      line: "generate --model runs/first --prompt 'Call me' --temperature 0 --max-tokens 20 --quiet",
      says: 'the likeliest text alone, for scripts',
    },
  ],
  run,
});

interface GenerateStreams extends Omit<CommandContext, 'listen'> {
  readonly signal: AbortSignal;
}

async function run(flags: GenerateFlags, context: CommandContext): Promise<number> {
  if (flags.chat && flags.prompt !== undefined) {
    throw new UsageError(
      `--chat and --prompt "${flags.prompt}" both say what to answer. Give one of them.`,
    );
  }
  const idle = (['system', 'tools'] as const).find((name) => flags[name] !== undefined);
  if (!flags.chat && idle !== undefined) {
    throw new UsageError(`--${idle} is for --chat. Add that, or put its words into --prompt.`);
  }
  const { entry } = context;
  const signal = context.listen().signal;
  const streams = { ...context, signal };
  const tools = flags.tools === undefined ? undefined : readTools(flags.tools);
  const quantizeActivations = flags.precision === undefined;
  await using model = await openTextModel(flags, { entry, quantizeActivations });
  streams.signal.throwIfAborted();
  if (model.isRounding && !flags.quiet) {
    context.err.write(
      "Numbers of each token are rounded to 8 bits beside the model's blocks; --precision fp32 rounds none.\n",
    );
  }
  const speech = new Speech(model, flags, streams);
  if (flags.chat && context.input.isTTY === true && !flags.quiet) {
    context.err.write('Ctrl-D ends the conversation.\n');
  }
  try {
    await (flags.chat
      ? converse(speech, streams, new Briefing(model.tokenizer.chat!, flags, tools))
      : speech.tell(flags.prompt ?? ''));
  } catch (error) {
    throw streams.signal.aborted ? endedBy(streams, flags) : error;
  }
  if (!flags.quiet) {
    context.out.write(`${speech.summary()}\n`);
  }
  return 0;
}

/** Why the text or the conversation ends where it does, below the line on which it does. */
function endedBy({ err, signal }: GenerateStreams, { chat }: GenerateFlags): SignalError {
  const wish = signal.reason as SignalError;
  if (err.isTTY === true) {
    err.write('\n');
  }
  return wish.telling(`The ${chat ? 'conversation' : 'text'} was ended by ${wish.by}.`);
}

/** Writes what a model says, and counts its tokens. */
class Speech implements Speaker {
  readonly #model: TextModel;
  readonly #flags: GenerateFlags;
  readonly #streams: GenerateStreams;
  #numTokens = 0;
  #ms = 0;

  constructor(model: TextModel, flags: GenerateFlags, streams: GenerateStreams) {
    this.#model = model;
    this.#flags = flags;
    this.#streams = streams;
    if (flags.chat && model.tokenizer.chat === undefined) {
      throw new UsageError(
        `--chat: ${flags.model} has no chat template. Put a chat_template.jinja there, or give a --prompt.`,
      );
    }
  }

  /** Writes a text that begins with the prompt. */
  async tell(prompt: string): Promise<void> {
    const tokens = promptTokens(prompt, this.#model.tokenizer);
    const { quiet: isQuiet } = this.#flags;
    await this.#say(tokens, isQuiet ? '' : prompt);
    if (!isQuiet) {
      this.#streams.out.write('\n');
    }
  }

  async answer(messages: readonly ChatMessage[], values: Conversation['values']): Promise<string> {
    const { tokenizer } = this.#model;
    const text = tokenizer.chat!.render(messages, { asks: true, values });
    const said = await this.#say([...tokenizer.encode(text)]);
    this.#streams.out.write('\n');
    return said;
  }

  /** A line about the tokens written so far and their speed. */
  summary(): string {
    const speed = this.#ms === 0 ? 0 : (1000 * this.#numTokens) / this.#ms;
    return `${this.#numTokens} tokens, ${speed.toFixed(1)} tokens/s`;
  }

  /** @param before written as soon as the prompt is known to fit */
  async #say(prompt: readonly number[], before = ''): Promise<string> {
    const { out, signal } = this.#streams;
    const { tokenizer } = this.#model;
    const decode = (tokens: Iterable<number>) => tokenizer.decode(tokens);
    const stream = new TextStream(decode, { prompt, stop: this.#flags.stop ?? [] });
    let said = '';
    const write = (text: string) => {
      said += text;
      out.write(out.isTTY === true ? printable(text) : text);
    };
    const started = performance.now();
    const tokens = this.#model.continue(prompt);
    out.write(before);
    for await (const token of tokens) {
      signal.throwIfAborted();
      this.#numTokens += 1;
      const { text, isStopped } = stream.add(token);
      write(text);
      if (isStopped) {
        this.#ms += performance.now() - started;
        return said;
      }
    }
    this.#ms += performance.now() - started;
    signal.throwIfAborted();
    write(stream.end().text);
    return said;
  }
}

/**
 * The tokens of a prompt. An empty prompt is a begin token or, where there is none, the end token
 * that stands between texts. Nothing stands between texts in bytes.
 */
function promptTokens(prompt: string, tokenizer: Tokenizer): number[] {
  const { name, beginToken, endToken, addsBegin } = tokenizer;
  if (prompt !== '') {
    const before = addsBegin && beginToken !== undefined ? [beginToken] : [];
    return [...before, ...tokenizer.encode(prompt)];
  }
  const first = beginToken ?? (name === 'byte' ? undefined : endToken);
  if (first === undefined) {
    throw new UsageError(
      `--prompt is empty, and --tokenizer ${name} has no token that a text begins with. Give a prompt.`,
    );
  }
  return [first];
}
