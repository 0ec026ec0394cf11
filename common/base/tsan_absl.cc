// Linked into ThreadSanitizer builds only. Debian's libabsl is not instrumented, so ThreadSanitizer
// cannot see that absl::Mutex and its kin order memory accesses, and would report every guarded
// field as a race. The linker's --wrap (common/cmake/XferTargets.cmake) routes our calls through
// these functions, which tell it. XFER_ABSL_NS is Abseil's mangled inline namespace, e.g. 7debian3.
#include <sanitizer/tsan_interface.h>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

#define XFER_CAT3_(a, b, c) a##b##c
#define XFER_CAT3(a, b, c) XFER_CAT3_(a, b, c)
#define REAL(name) XFER_CAT3(__real__ZN4absl, XFER_ABSL_NS, name)
#define WRAP(name) XFER_CAT3(__wrap__ZN4absl, XFER_ABSL_NS, name)
#define REAL_CONST(name) XFER_CAT3(__real__ZNK4absl, XFER_ABSL_NS, name)
#define WRAP_CONST(name) XFER_CAT3(__wrap__ZNK4absl, XFER_ABSL_NS, name)

using absl::BlockingCounter;
using absl::Condition;
using absl::CondVar;
using absl::Duration;
using absl::Mutex;
using absl::Notification;
using absl::Time;

extern "C" {

#define XFER_LOCK(name)        \
  void REAL(name)(Mutex * m);  \
  void WRAP(name)(Mutex * m);  \
  void WRAP(name)(Mutex * m) { \
    REAL(name)(m);             \
    __tsan_acquire(m);         \
  }
#define XFER_UNLOCK(name)      \
  void REAL(name)(Mutex * m);  \
  void WRAP(name)(Mutex * m);  \
  void WRAP(name)(Mutex * m) { \
    __tsan_release(m);         \
    REAL(name)(m);             \
  }
#define XFER_TRY_LOCK(name)        \
  bool REAL(name)(Mutex * m);      \
  bool WRAP(name)(Mutex * m);      \
  bool WRAP(name)(Mutex * m) {     \
    const bool ok = REAL(name)(m); \
    if (ok) __tsan_acquire(m);     \
    return ok;                     \
  }
XFER_LOCK(5Mutex4LockEv)
XFER_LOCK(5Mutex10ReaderLockEv)
XFER_UNLOCK(5Mutex6UnlockEv)
XFER_UNLOCK(5Mutex12ReaderUnlockEv)
XFER_TRY_LOCK(5Mutex7TryLockEv)
XFER_TRY_LOCK(5Mutex13ReaderTryLockEv)

// Waiting gives the lock away and takes it again.
#define XFER_AWAIT(name)                           \
  void REAL(name)(Mutex * m, const Condition& c);  \
  void WRAP(name)(Mutex * m, const Condition& c);  \
  void WRAP(name)(Mutex * m, const Condition& c) { \
    __tsan_release(m);                             \
    REAL(name)(m, c);                              \
    __tsan_acquire(m);                             \
  }
#define XFER_AWAIT_UNTIL(name, Limit)                           \
  bool REAL(name)(Mutex * m, const Condition& c, Limit limit);  \
  bool WRAP(name)(Mutex * m, const Condition& c, Limit limit);  \
  bool WRAP(name)(Mutex * m, const Condition& c, Limit limit) { \
    __tsan_release(m);                                          \
    const bool ok = REAL(name)(m, c, limit);                    \
    __tsan_acquire(m);                                          \
    return ok;                                                  \
  }
XFER_AWAIT(5Mutex5AwaitERKNS0_9ConditionE)
XFER_AWAIT_UNTIL(5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE, Duration)
XFER_AWAIT_UNTIL(5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE, Time)

// Taking the lock on a condition: nothing is given away first.
#define XFER_LOCK_WHEN(name)                       \
  void REAL(name)(Mutex * m, const Condition& c);  \
  void WRAP(name)(Mutex * m, const Condition& c);  \
  void WRAP(name)(Mutex * m, const Condition& c) { \
    REAL(name)(m, c);                              \
    __tsan_acquire(m);                             \
  }
#define XFER_LOCK_WHEN_UNTIL(name, Limit)                       \
  bool REAL(name)(Mutex * m, const Condition& c, Limit limit);  \
  bool WRAP(name)(Mutex * m, const Condition& c, Limit limit);  \
  bool WRAP(name)(Mutex * m, const Condition& c, Limit limit) { \
    const bool ok = REAL(name)(m, c, limit);                    \
    __tsan_acquire(m);                                          \
    return ok;                                                  \
  }
XFER_LOCK_WHEN(5Mutex8LockWhenERKNS0_9ConditionE)
XFER_LOCK_WHEN_UNTIL(5Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE, Duration)
XFER_LOCK_WHEN_UNTIL(5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE, Time)

#define XFER_COND_WAIT_UNTIL(name, Limit)                 \
  bool REAL(name)(CondVar * cv, Mutex * m, Limit limit);  \
  bool WRAP(name)(CondVar * cv, Mutex * m, Limit limit);  \
  bool WRAP(name)(CondVar * cv, Mutex * m, Limit limit) { \
    __tsan_release(m);                                    \
    const bool timed_out = REAL(name)(cv, m, limit);      \
    __tsan_acquire(m);                                    \
    return timed_out;                                     \
  }
XFER_COND_WAIT_UNTIL(7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE, Duration)
XFER_COND_WAIT_UNTIL(7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE, Time)
void REAL(7CondVar4WaitEPNS0_5MutexE)(CondVar* cv, Mutex* m);
void WRAP(7CondVar4WaitEPNS0_5MutexE)(CondVar* cv, Mutex* m);
void WRAP(7CondVar4WaitEPNS0_5MutexE)(CondVar* cv, Mutex* m) {
  __tsan_release(m);
  REAL(7CondVar4WaitEPNS0_5MutexE)(cv, m);
  __tsan_acquire(m);
}

// Notification::HasBeenNotified() is inline and reads the flag behind the mutex, so that is
// released too.
void REAL(12Notification6NotifyEv)(Notification* n);
void WRAP(12Notification6NotifyEv)(Notification* n);
void WRAP(12Notification6NotifyEv)(Notification* n) {
  __tsan_release(n);
  __tsan_release(reinterpret_cast<char*>(n) + sizeof(Mutex));
  REAL(12Notification6NotifyEv)(n);
}
void REAL_CONST(12Notification19WaitForNotificationEv)(Notification* n);
void WRAP_CONST(12Notification19WaitForNotificationEv)(Notification* n);
void WRAP_CONST(12Notification19WaitForNotificationEv)(Notification* n) {
  REAL_CONST(12Notification19WaitForNotificationEv)(n);
  __tsan_acquire(n);
}
#define XFER_NOTIFICATION_UNTIL(name, Limit)             \
  bool REAL_CONST(name)(Notification * n, Limit limit);  \
  bool WRAP_CONST(name)(Notification * n, Limit limit);  \
  bool WRAP_CONST(name)(Notification * n, Limit limit) { \
    const bool ok = REAL_CONST(name)(n, limit);          \
    if (ok) __tsan_acquire(n);                           \
    return ok;                                           \
  }
XFER_NOTIFICATION_UNTIL(12Notification30WaitForNotificationWithTimeoutENS0_8DurationE, Duration)
XFER_NOTIFICATION_UNTIL(12Notification31WaitForNotificationWithDeadlineENS0_4TimeE, Time)

bool REAL(15BlockingCounter14DecrementCountEv)(BlockingCounter* b);
bool WRAP(15BlockingCounter14DecrementCountEv)(BlockingCounter* b);
bool WRAP(15BlockingCounter14DecrementCountEv)(BlockingCounter* b) {
  __tsan_release(b);
  return REAL(15BlockingCounter14DecrementCountEv)(b);
}
void REAL(15BlockingCounter4WaitEv)(BlockingCounter* b);
void WRAP(15BlockingCounter4WaitEv)(BlockingCounter* b);
void WRAP(15BlockingCounter4WaitEv)(BlockingCounter* b) {
  REAL(15BlockingCounter4WaitEv)(b);
  __tsan_acquire(b);
}

}  // extern "C"
