// A response that is requested again when its inputs change; the old one stays until the new one has arrived.
import { app } from "./state.svelte";

export class Fetched<T> {
  value = $state.raw<T | undefined>(undefined);

  // `request` reads its inputs before its first await. A response older than the received one is dropped.
  constructor(request: () => Promise<T> | undefined) {
    let requested = 0;
    let received = 0;
    $effect(() => {
      void app.tick;
      const number = ++requested;
      const pending = request();
      if (!pending) {
        this.value = undefined;
        return;
      }
      pending.then(
        (value) => {
          if (number < received) return;
          received = number;
          this.value = value;
          app.failure = "";
        },
        (error: unknown) => {
          if (number === requested) app.failure = error instanceof Error ? error.message : String(error);
        },
      );
    });
  }
}
