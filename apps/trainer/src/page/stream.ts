// Follows a command that serves the page: first everything so far, then what comes. When the
// connection breaks it asks again from the start, so that nothing that happened meanwhile is
// missing.

/** The state of the connection. 'refused': the token is not that of this command. */
export type StreamState = 'open' | 'lost' | 'refused';

export interface StreamListener {
  readonly token: string;
  /** What is asked for, behind `?`. */
  readonly query: string;
  /** Ends the stream, so that another one can ask for something else. */
  readonly signal: AbortSignal;
  onMessage(name: string, data: unknown): void;
  onState(state: StreamState): void;
  /** Whether nothing more can come once the connection ends. */
  isOver(): boolean;
}

const RETRY_MS = 1000;

export async function followEvents(listener: StreamListener): Promise<void> {
  const { token, query, signal } = listener;
  while (!listener.isOver() && !signal.aborted) {
    try {
      const headers = { Authorization: `Bearer ${token}` };
      const response = await fetch(`events?${query}`, { headers, signal });
      if (!response.ok || response.body === null) {
        listener.onState('refused');
        return;
      }
      listener.onState('open');
      await readEvents(response.body, (name, data) => listener.onMessage(name, JSON.parse(data)));
    } catch {
      // The command is gone, or its machine sleeps.
    }
    if (!listener.isOver() && !signal.aborted) {
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
