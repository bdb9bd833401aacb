// Follows a running command: first everything so far, then each record as it comes. When the
// connection breaks it asks again from the start, so that nothing that happened meanwhile is
// missing.

import type { PageRecord } from './step-table.js';

export interface StreamListener {
  /** Called with everything so far; what was known before is to be forgotten. */
  onHistory(records: readonly PageRecord[]): void;
  onRecord(record: PageRecord): void;
  onState(state: StreamState): void;
}

/** The state of the connection. 'refused': the token is not that of this command. */
export type StreamState = 'open' | 'lost' | 'refused';

const RETRY_MS = 1000;

export async function followRun(token: string, listener: StreamListener): Promise<void> {
  let hasEnded = false;
  const onMessage = (name: string, data: string) => {
    const value = JSON.parse(data);
    if (name === 'history') {
      listener.onHistory(value);
      hasEnded = (value as PageRecord[]).at(-1)?.type === 'runEnd';
    } else {
      listener.onRecord(value);
      hasEnded = value.type === 'runEnd';
    }
  };
  while (!hasEnded) {
    try {
      const response = await fetch('events', { headers: { Authorization: `Bearer ${token}` } });
      if (!response.ok || response.body === null) {
        listener.onState('refused');
        return;
      }
      listener.onState('open');
      await readEvents(response.body, onMessage);
    } catch {
      // The command is gone, or its machine sleeps.
    }
    if (!hasEnded) {
      listener.onState('lost');
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }
}

/** Reads server-sent events of one line of data each, until the body ends. */
async function readEvents(
  body: ReadableStream<Uint8Array>,
  onMessage: (name: string, data: string) => void,
): Promise<void> {
  const reader = body.pipeThrough(new TextDecoderStream() as never).getReader();
  // Pieces are joined only where a message ends, because a long history comes in very many pieces.
  let pieces: string[] = [];
  for (;;) {
    const { done, value } = (await reader.read()) as { done: boolean; value: string };
    if (done) {
      return;
    }
    pieces.push(value);
    if (!value.includes('\n')) {
      continue;
    }
    const messages = pieces.join('').split('\n\n');
    pieces = [messages.pop()!];
    for (const message of messages) {
      const [, name, data] = /^event: (\w+)\ndata: (.*)$/s.exec(message) ?? [];
      if (name !== undefined && data !== undefined) {
        onMessage(name, data);
      }
    }
  }
}
