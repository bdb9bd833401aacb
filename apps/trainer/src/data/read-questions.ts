// What a model is asked in an evaluation of its answers: each place of a data set where the
// assistant says something, with what stands before it.

import { UsageError } from '../errors.js';
import { type DataName, DataSource } from './data-source.js';
import { parseLine } from './document.js';
import { eachEntry, hasNone } from './each-entry.js';
import { readDocument } from './line-shapes.js';
import type { Tokenizer } from './tokenizer.js';

export interface Question {
  /** Where it is for people, such as `chats.jsonl, line 3`. */
  readonly place: string;
  /** The tokens before the answer. */
  readonly prompt: readonly number[];
  /** The answer of the data, without the token that ends it. */
  readonly wanted: string;
}

export interface Questions {
  readonly documents: number;
  readonly questions: readonly Question[];
}

export interface ReadQuestionsOptions {
  /** The flag that names the data. */
  readonly flag: string;
  /** The most questions; those are the first ones. Default: all. */
  readonly most?: number | undefined;
}

/**
 * The questions of data. An answer that is not learnt from is not asked for.
 * @throws {UsageError} for texts without answers, and for conversations without a chat template
 */
export async function readQuestions(
  data: DataName,
  tokenizer: Tokenizer,
  { flag, most = Number.POSITIVE_INFINITY }: ReadQuestionsOptions,
): Promise<Questions> {
  const source = await DataSource.open(data, flag, { isOfExamples: true });
  const questions: Question[] = [];
  let documents = 0;
  await eachEntry(source, { onTokenized: () => {} }, async ({ text, place }) => {
    if (questions.length >= most) {
      return;
    }
    const asked = questionsIn(text, tokenizer);
    questions.push(...asked.map((question) => ({ ...question, place })));
    documents += 1;
  });
  if (questions.length === 0) {
    throw hasNone(source, 'answers');
  }
  return { documents, questions: questions.slice(0, most) };
}

function questionsIn(line: string, tokenizer: Tokenizer): Omit<Question, 'place'>[] {
  const document = readDocument(parseLine(line));
  const encode = (text: string) => [...tokenizer.encode(text)];
  if ('parts' in document) {
    const [before, answer] = document.parts;
    if (answer === undefined) {
      throw new UsageError(
        'expected {"messages"} or {"prompt", "completion"}, whose answers can be compared, got a "text". Evaluate texts without --task.',
      );
    }
    const { beginToken: begin, addsBegin } = tokenizer;
    const first = addsBegin && begin !== undefined ? [begin] : [];
    return [
      { prompt: [...first, ...encode(before!.text)], wanted: withoutEnd(answer.text, tokenizer) },
    ];
  }
  const { chat } = tokenizer;
  if (chat === undefined) {
    throw new UsageError(
      `expected {"prompt", "completion"}, since --tokenizer ${tokenizer.name} has no chat template, got "${document.field}". Give a model with a chat_template.`,
    );
  }
  const { messages, unlearnt } = document.conversation;
  return messages.flatMap(({ role }, i) => {
    if (role !== 'assistant' || unlearnt?.has(i) === true) {
      return [];
    }
    const { asked, answer } = chat.question(document.conversation, i);
    return [{ prompt: encode(asked), wanted: withoutEnd(answer, tokenizer) }];
  });
}

/** An answer without the tokens that end it, as a model's is read. */
function withoutEnd(answer: string, tokenizer: Tokenizer): string {
  const tokens = tokenizer.encode(answer.trimEnd());
  const end = tokens.findLastIndex((token) => !tokenizer.endTokens.includes(token)) + 1;
  return tokenizer.decode(tokens.subarray(0, end)).trim();
}
